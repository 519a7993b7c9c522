"""The HTTP server: paths, users, verbs, lists and watches, around the store."""

import asyncio
import base64
import random
import socket
import ssl
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import yaml
from aiohttp import web

from kube_api.access import MASTERS, Ask, User, allows, refusal, service_account
from kube_api.errors import ApiError, bad_request, expired, invalid
from kube_api.faults import REASONS, Fault
from kube_api.resources import BUILT_IN, Resource
from kube_api.selectors import by_fields, by_labels
from kube_api.store import PATCHES, Object, Store
from kube_api.watching import Watch, replay

ADMIN_TOKEN = "admin-token"
_MOST_REQUESTS = 50_000
_LONGEST_BODY = 3 * 1024 * 1024
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One request that was made: by whom, what, and the HTTP status it got (0: no answer)."""

    verb: str
    resource: str
    namespace: str
    name: str
    user: str
    status: int
    body: Any = None


@dataclass
class _Path:
    """What the path of a request names."""

    resource: Resource
    namespace: str
    name: str
    subresource: str

    @property
    def shown(self) -> str:
        return self.resource.plural + (f"/{self.subresource}" if self.subresource else "")


class KubeApi:
    """A running API server; `async with KubeApi() as api`, or `with KubeApi().in_thread() as api`.

    The methods without HTTP (`create`, `patch`, `delete` ...) are the rest of the cluster: they ask for no
    permission, meet no faults, and may set a status together with the rest. `requests` and `counts` (by
    verb and resource) say what came over HTTP.
    """

    def __init__(
        self,
        *more: Resource,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`more` are custom resources beside the built-in ones."""
        self.store = Store(now)
        self.port = port
        self._tls = tls
        self.faults: list[Fault] = []
        self.requests: deque[Request] = deque(maxlen=_MOST_REQUESTS)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.watches: list[Watch] = []
        self.gone_as_status = False
        """Whether a watch from too old a version is answered with HTTP 410; else with an ERROR event."""
        self.bookmark_seconds = 60.0
        self._resources = {resource.key: resource for resource in (*BUILT_IN, *more)}
        self._users = {ADMIN_TOKEN: User("admin", frozenset({MASTERS}))}
        self._runner: web.ServerRunner | None = None
        self._holder: socket.socket | None = None
        """Bound to our port and not listening: nobody else gets it while we are stopped."""

    # -- running -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        if self._holder is not None:
            self._holder.close()

    async def start(self) -> None:
        """Listen; at the same port as before, if it ran before."""
        if self._holder is None:
            self._holder = socket.socket()
            self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._holder.bind(("127.0.0.1", self.port))
            self.port = self._holder.getsockname()[1]
        server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=self._tls)
        await site.start()

    async def stop(self) -> None:
        """Stop listening and drop every connection; the objects stay."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self.cut_watches()
            await runner.cleanup()

    def in_thread(self) -> "InThread":
        """The same in a thread of its own, for tests that block."""
        return InThread(self)

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path, token: str = ADMIN_TOKEN) -> Path:
        """Write a kubeconfig of the user with that token."""
        named = {"name": "test"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{**named, "cluster": {"server": self.url}}],
            "users": [{**named, "user": {"token": token}}],
            "contexts": [{**named, "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    # -- the rest of the cluster ---------------------------------------------------------------------------

    def resource(self, name: str) -> Resource:
        """By its plural, with ".GROUP" where several groups have one: "pods", "events.events.k8s.io"."""
        plural, _, group = name.partition(".")
        fit = [one for one in self._resources.values() if one.plural == plural and group in ("", one.group)]
        if not fit:
            raise KeyError(f"there is no resource {name!r}")
        return fit[0]

    def create(self, *manifests: Object, manager: str = "test") -> Object:
        """Create objects as they stand, status and all; the last of them as stored."""
        stored: Object = {}
        for given in manifests:
            resource = self._resource_of(given)
            namespace = given["metadata"].get("namespace", "default") if resource.namespaced else ""
            if namespace:
                self.have_namespace(namespace)
            stored = self.store.create(resource, namespace, given, manager)
        return deepcopy(stored)

    def get(self, plural: str, name: str, namespace: str = "serving") -> Object:
        resource = self.resource(plural)
        return deepcopy(self.store.get(resource, self._key(resource, namespace, name)))

    def objects(self, plural: str) -> list[Object]:
        return [deepcopy(obj) for obj in self.store.all(self.resource(plural)).values()]

    def patch(
        self,
        plural: str,
        name: str,
        patch: Object,
        namespace: str = "serving",
        *,
        subresource: str = "",
        manager: str = "test",
    ) -> Object:
        """Merge a patch strategically (a custom resource: plainly), as somebody else."""
        resource = self.resource(plural)
        kind = f"application/{'' if resource.custom else 'strategic-'}merge-patch+json"
        key = self._key(resource, namespace, name)
        if subresource == "scale":
            return self.store.set_scale(resource, key, patch, manager)
        return deepcopy(self.store.patch(resource, key, patch, kind, manager, subresource=subresource))

    def delete(self, plural: str, name: str, namespace: str = "serving", *, grace: int | None = None) -> None:
        """As `kubectl delete`: a pod on a node is terminating until `finish`."""
        resource = self.resource(plural)
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        self.store.delete(resource, self._key(resource, namespace, name), options)

    def finish(self, plural: str, name: str, namespace: str = "serving") -> None:
        """Remove at once."""
        resource = self.resource(plural)
        self.store.finish(resource, self._key(resource, namespace, name))

    def have_namespace(self, name: str) -> None:
        """Make the namespace, if it is not there."""
        spaces = self.resource("namespaces")
        if ("", name) not in self.store.all(spaces):
            self.store.create(spaces, "", {"metadata": {"name": name}}, "kube-apiserver")

    def service_account(self, namespace: str, name: str, *manifests: Object) -> str:
        """The token of a service account; `manifests` (roles, bindings) are created if they are not there."""
        for given in manifests:
            with suppress(ApiError):
                self.create(given)
        token = f"token-{namespace}-{name}"
        self._users[token] = service_account(namespace, name)
        return token

    def revoke(self, token: str) -> None:
        """Know the token no longer."""
        self._users.pop(token, None)

    # -- faults --------------------------------------------------------------------------------------------

    def fail(self, verb: str | None = None, resource: str | None = None, **how: Any) -> Fault:
        """Let matching requests go wrong, see Fault; "pods/status" is a resource of its own."""
        fault = Fault(verb, resource, **how)
        self.faults.append(fault)
        return fault

    def cut_watches(self, plural: str | None = None) -> int:
        """Drop the connections of watches; how many."""
        fit = [watch for watch in self.watches if plural in (None, watch.resource.plural)]
        for watch in fit:
            if watch.transport is not None:
                watch.transport.abort()
        return len(fit)

    def mute_watches(self) -> int:
        """Let the present watches stay open and say nothing more; how many."""
        for watch in self.watches:
            watch.muted = True
        return len(self.watches)

    def slow_watches(self, seconds: float) -> None:
        """Let the present watches wait before each event."""
        for watch in self.watches:
            watch.slow_seconds = seconds

    def expire_watches(self) -> None:
        """End the present watches with an ERROR event of code 410."""
        for watch in self.watches:
            watch.fail(expired("The resourceVersion for the provided watch is too old."))

    def compact(self) -> None:
        """Forget all earlier changes: whoever watches from before gets 410."""
        self.store.compact()

    # -- one request ---------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        made = _Made()
        try:
            answer = await self._answer(request, made)
            made.status = answer.status
        except ApiError as error:
            made.status = error.code
            answer = _json(error.status(), error.code)
            if error.retry_after is not None:
                answer.headers["Retry-After"] = str(error.retry_after)
        except _DroppedError:
            answer = web.Response()  # nobody gets it
        finally:
            if made.verb and not made.is_counted:
                self._count(made)
        return answer

    def _count(self, made: "_Made") -> None:
        made.is_counted = True
        self.counts[made.verb, made.resource] += 1
        self.requests.append(
            Request(made.verb, made.resource, made.namespace, made.name, made.user, made.status, made.body)
        )

    async def _answer(self, request: web.BaseRequest, made: "_Made") -> web.StreamResponse:
        user = self._user(request)
        plain = self._plain(request.path)
        if plain is not None:
            return _json(plain)
        path = self._path(request.path)
        query = request.query
        verb = _verb(request.method, path, query)
        made.take(verb, path, user.name)
        body = await self._body(request)
        made.body = body
        await self._meet_faults(request, verb, path, before=True)
        self._authorize(user, verb, path)
        if verb == "watch":
            return await self._watch(request, path, made)
        done = self._carry_out(request, verb, path, body)
        await self._meet_faults(request, verb, path, before=False)
        return done

    def _carry_out(  # noqa: PLR0911
        self, request: web.BaseRequest, verb: str, path: _Path, body: Any
    ) -> web.Response:
        """Everything but watches. No await in it: a request is one transaction."""
        resource, query, store = path.resource, request.query, self.store
        dry = _dry(query.get("dryRun"))
        manager = query.get("fieldManager") or request.headers.get("User-Agent", "unknown").partition("/")[0]
        key = (path.namespace, path.name)
        match verb:
            case "get" if path.subresource == "scale":
                return _json(store.scale(resource, key))
            case "get":
                return _json(store.get(resource, key))
            case "list":
                return _json(self._list(path, query))
            case "create" if path.subresource == "eviction":
                store.evict(resource, self.resource("poddisruptionbudgets"), key, body or {}, dry=dry)
                return _json(
                    {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201},
                    201,
                )
            case "create":
                return _json(self._create(path, body, manager, dry), 201)
            case "update" if path.subresource == "scale":
                return _json(store.set_scale(resource, key, body, manager, dry=dry))
            case "update":
                return _json(
                    store.replace(resource, key, body, manager, subresource=path.subresource, dry=dry)
                )
            case "patch":
                kind = request.content_type
                if path.subresource == "scale":
                    return _json(self._patch_scale(resource, key, body, kind=kind, manager=manager, dry=dry))
                return _json(
                    store.patch(resource, key, body, kind, manager, subresource=path.subresource, dry=dry)
                )
            case "delete":
                return _json(
                    self._deleted(resource, store.delete(resource, key, _options(body, query), dry=dry))
                )
            case _:
                listed = self._list(path, query)["items"]
                for obj in listed:
                    at = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
                    store.delete(resource, at, _options(body, query), dry=dry)
                return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    def _create(self, path: _Path, body: Any, manager: str, dry: bool) -> Object:
        if not isinstance(body, dict):
            raise bad_request("the body holds no object")
        if path.namespace:
            self.store.get(self.resource("namespaces"), ("", path.namespace))
        if "status" in path.resource.subresources:
            body = {key: value for key, value in body.items() if key != "status"}
        return self.store.create(path.resource, path.namespace, body, manager, dry=dry)

    def _patch_scale(
        self, resource: Resource, key: tuple[str, str], body: Any, *, kind: str, manager: str, dry: bool
    ) -> Object:
        if kind not in PATCHES:
            raise ApiError(415, "UnsupportedMediaType", f"{kind} is no kind of patch")
        patched = PATCHES[kind](self.store.scale(resource, key), body)
        return self.store.set_scale(resource, key, patched, manager, dry=dry)

    def _deleted(self, resource: Resource, obj: Object) -> Object:
        if resource.key == ("", "pods"):
            return obj
        details = {"name": obj["metadata"]["name"], "kind": resource.plural, "uid": obj["metadata"]["uid"]}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    def _list(self, path: _Path, query: Any) -> Object:
        resource, version = path.resource, self.store.version
        since, token = query.get("resourceVersion", ""), query.get("continue", "")
        limit = int(query.get("limit") or 0)
        start = ("", "")
        if token:
            version, *start_ = msgspec.json.decode(base64.urlsafe_b64decode(token))
            start = tuple(start_)
            if version < self.store.compacted:
                raise expired(
                    "The provided continue parameter is too old to display a consistent list result."
                )
        elif since not in ("", "0"):
            if int(since) > version:
                list(replay(self.store, int(since)))
            if query.get("resourceVersionMatch") == "Exact" and int(since) < version:
                raise expired("The resourceVersion for the provided list is too old.")
        tests = _tests(query, resource)
        keys = sorted(
            key
            for key, obj in self.store.all(resource).items()
            if key > start and path.namespace in ("", key[0]) and all(test(obj) for test in tests)
        )
        if path.name:
            keys = [key for key in keys if key[1] == path.name]
        shown = keys[:limit] if limit else keys
        metadata: Object = {"resourceVersion": str(version)}
        if len(shown) < len(keys):
            metadata["continue"] = base64.urlsafe_b64encode(
                msgspec.json.encode([version, *shown[-1]])
            ).decode()
            metadata["remainingItemCount"] = len(keys) - len(shown)
        objects = self.store.all(resource)
        items = [{k: v for k, v in objects[key].items() if k not in ("kind", "apiVersion")} for key in shown]
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": metadata,
            "items": items,
        }

    async def _watch(self, request: web.BaseRequest, path: _Path, made: "_Made") -> web.StreamResponse:
        query, resource = request.query, path.resource
        if query.get("sendInitialEvents"):
            why = "Forbidden: sendInitialEvents needs the feature gate WatchList"
            raise invalid("ListOptions", "", "sendInitialEvents", why)
        watch = Watch(resource, path.namespace, _tests(query, resource), request.query_string)
        since = query.get("resourceVersion", "")
        if path.name:
            watch = Watch(resource, path.namespace, [lambda obj: obj["metadata"]["name"] == path.name], "")
        try:
            if since in ("", "0"):
                watch.show(self.store.all(resource).values())
            else:
                for change in replay(self.store, int(since)):
                    watch.take(change)
        except ApiError as error:
            if self.gone_as_status:
                raise
            watch.fail(error)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        watch.transport = request.transport
        seconds = float(query.get("timeoutSeconds") or 0) or random.uniform(1800, 3600)
        bookmark_seconds = self.bookmark_seconds if query.get("allowWatchBookmarks") == "true" else 0.0
        made.status = 200
        self._count(made)  # when it begins: it may never end
        self.watches.append(watch)
        stop_listening = self.store.listen(watch.take)
        try:
            response.enable_chunked_encoding()
            await response.prepare(request)
            await watch.send(response, self.store, seconds, bookmark_seconds)
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            stop_listening()
            self.watches.remove(watch)
        return response

    async def _meet_faults(self, request: web.BaseRequest, verb: str, path: _Path, *, before: bool) -> None:
        for fault in self.faults:
            is_after = fault.lose == "answer"
            if is_after is before or not fault.takes(verb, path.shown, path.name):
                continue
            if fault.delay:
                await asyncio.sleep(fault.delay)
            if fault.meddle is not None:
                fault.meddle()
            if fault.hang:
                await asyncio.Event().wait()
            if fault.lose is not None:
                assert request.transport is not None
                request.transport.abort()
                raise _DroppedError
            if fault.status is not None:
                reason = REASONS.get(fault.status, "Unknown")
                raise ApiError(fault.status, reason, "the test wanted it so", retry_after=fault.retry_after)

    def _authorize(self, user: User, verb: str, path: _Path) -> None:
        ask = Ask(verb, path.resource.group, path.shown, path.namespace, path.name)
        if path.resource.plural == "namespaces":
            ask = Ask(verb, "", path.shown, path.name, path.name)
        if not allows(self.store.objects, user, ask):
            details = {"name": path.name, "kind": path.resource.plural, "group": path.resource.group}
            raise ApiError(403, "Forbidden", refusal(user, ask), details=details)

    # -- reading requests ----------------------------------------------------------------------------------

    def _user(self, request: web.BaseRequest) -> User:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        user = self._users.get(token) if kind.lower() == "bearer" else None
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return user

    async def _body(self, request: web.BaseRequest) -> Any:
        raw = await request.read()
        if len(raw) > _LONGEST_BODY:
            raise ApiError(413, "RequestEntityTooLarge", f"limit is {_LONGEST_BODY}")
        try:
            return msgspec.json.decode(raw) if raw else None
        except msgspec.DecodeError as error:
            raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None

    def _path(self, text: str) -> _Path:
        parts = text.strip("/").split("/")
        if parts[:2] == ["api", "v1"]:
            group, version, rest = "", "v1", parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise _no_such_path()
        namespace = ""
        if rest[0:1] == ["namespaces"] and len(rest) > 2 and rest[2] != "status":
            namespace, rest = rest[1], rest[2:]
        resource = self._resources.get((group, rest[0])) if rest else None
        if resource is None or resource.version != version or len(rest) > 3:
            raise _no_such_path()
        subresource = rest[2] if len(rest) == 3 else ""
        if (subresource and subresource not in resource.subresources) or (
            namespace and not resource.namespaced
        ):
            raise _no_such_path()
        return _Path(resource, namespace, rest[1] if len(rest) > 1 else "", subresource)

    def _plain(self, path: str) -> Any:  # noqa: PLR0911
        """What stands at the paths of discovery and health."""
        versions = {(one.group, one.version) for one in self._resources.values()}
        parts = path.strip("/").split("/")
        match parts:
            case ["version"]:
                return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
            case ["healthz" | "readyz" | "livez"]:
                return "ok"
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"]}
            case ["apis"]:
                groups = [
                    {
                        "name": group,
                        "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
                        "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version},
                    }
                    for group, version in sorted(versions)
                    if group
                ]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            case ["api", "v1"]:
                return self._resource_list("", "v1")
            case ["apis", group, version] if (group, version) in versions:
                return self._resource_list(group, version)
        return None

    def _resource_list(self, group: str, version: str) -> Object:
        listed = [
            {
                "name": one.plural + (f"/{sub}" if sub else ""),
                "singularName": one.kind.lower(),
                "namespaced": one.namespaced,
                "kind": one.kind,
                "verbs": ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"],
            }
            for one in self._resources.values()
            if (one.group, one.version) == (group, version)
            for sub in ("", *sorted(one.subresources))
        ]
        named = f"{group}/{version}" if group else version
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": named, "resources": listed}

    def _resource_of(self, given: Object) -> Resource:
        group, _, _ = given["apiVersion"].rpartition("/")
        for resource in self._resources.values():
            if (resource.group, resource.kind) == (group, given["kind"]):
                return resource
        raise KeyError(f"there is no {given['kind']} in {given['apiVersion']}")

    def _key(self, resource: Resource, namespace: str, name: str) -> tuple[str, str]:
        return (namespace if resource.namespaced else "", name)


class _DroppedError(Exception):
    """A test wanted the connection to break here."""


@dataclass
class _Made:
    """What is known so far of a request under way."""

    verb: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    user: str = ""
    status: int = 0
    body: Any = None
    is_counted: bool = field(default=False, repr=False)

    def take(self, verb: str, path: _Path, user: str) -> None:
        self.verb, self.resource, self.user = verb, path.shown, user
        self.namespace, self.name = path.namespace, path.name


def _verb(method: str, path: _Path, query: Any) -> str:
    if method == "GET" and query.get("watch") in ("true", "1"):
        return "watch"
    verbs = {
        ("GET", True): "get",
        ("GET", False): "list",
        ("POST", bool(path.subresource)): "create",
        ("PUT", True): "update",
        ("PATCH", True): "patch",
        ("DELETE", True): "delete",
        ("DELETE", False): "deletecollection",
    }
    verb = verbs.get((method, bool(path.name)))
    if verb is None or (verb == "create") != (method == "POST"):
        raise ApiError(
            405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
        )
    return verb


def _dry(value: str | None) -> bool:
    if value not in (None, "All"):
        raise invalid("Options", "", "dryRun", f'Unsupported value: "{value}": supported values: "All"')
    return value == "All"


def _options(body: Any, query: Any) -> Object:
    options = dict(body or {})
    if "gracePeriodSeconds" in query:
        options["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    return options


def _tests(query: Any, resource: Resource) -> list[Any]:
    return [
        by_labels(query.get("labelSelector", "")),
        by_fields(query.get("fieldSelector", ""), resource.plural),
    ]


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


class InThread:
    """A KubeApi whose loop runs in a thread. What is called on `api` meanwhile goes through `call`."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kube-api", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.api.__aenter__(), self._loop).result(60)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.api.__aexit__(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def call(self, what: Callable[..., T], *args: Any, **named: Any) -> T:
        """Call a method of the API in its loop."""

        async def there() -> T:
            return what(*args, **named)

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(60)
