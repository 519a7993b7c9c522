"""Gateways as a daemon meets them: real steering and admission behind a wire that a test can cut."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from controlplane.actuators.call import Call, CallFailedError, Reply
from controlplane.actuators.gateway import Link
from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.replica import ReplicaSpec, Rotation
from controlplane.gateway.admission.settings import AdmissionSettings
from controlplane.gateway.admission.steering import Judgement, Steering
from controlplane.signals.control import ControlMessage, Judged, ReplicaOrder, read_message
from controlplane.signals.decision import Mode


class Orders:
    """A roster of what was ordered."""

    def __init__(self) -> None:
        self.orders: tuple[ReplicaOrder, ...] = ()

    def obey(self, orders: Iterable[ReplicaOrder], now: float) -> None:
        self.orders = tuple(orders)

    def specs(self, now: float) -> list[ReplicaSpec]:
        return [ReplicaSpec(name=o.name, pool=o.pool, rotation=Rotation(o.rotation)) for o in self.orders]


class FakeGateway:
    """One gateway at `url`; `cut` is why nothing gets through, `taken` are the messages that it took."""

    def __init__(
        self, name: str, unix: Callable[[], float], *, standing: float = 1.0, offset: float = 0.0
    ) -> None:
        self.name, self.url = name, f"http://{name}:9101"
        self.cut = ""
        self.taken: list[ControlMessage] = []
        self.calls: list[Call] = []
        self._standing = standing
        self._unix = lambda: unix() + offset  # its clock
        self.start()

    def start(self) -> None:
        """A process that begins anew."""
        now = self._unix()
        self.admission = Admission(
            AdmissionSettings(standing_share=self._standing), gateway=self.name, now=now
        )
        self.steering = Steering(self.admission, Orders(), self.name, Mode.OBSERVE, 1.0)

    def look(self) -> None:
        self.steering.look(self._unix(), self._unix())

    @property
    def share(self) -> float:
        """Its share of every replica now."""
        return self.admission.share.held(self._unix())

    @property
    def link(self) -> Link:
        return Link(self.url, self.send, self._headers)

    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": "Bearer secret"}

    async def send(self, call: Call) -> Reply:
        if self.cut:
            raise CallFailedError(f"{self.url}: {self.cut}")
        assert call.url == f"{self.url}/control/v1/state"
        assert call.headers["Authorization"] == "Bearer secret"
        self.calls.append(call)
        if call.method == "GET":
            return Reply(200, {}, msgspec.json.encode(self.steering.state(self.name, self._standing)))
        message = read_message(call.body)
        judgement = self.steering.take(message, self._unix(), self._unix())
        known = self.steering.message or message
        if judgement is Judgement.TAKEN:
            self.taken.append(message)
        said = Judged(judgement.value, known.term, known.version)
        good = judgement in (Judgement.TAKEN, Judgement.KNOWN)
        return Reply(200 if good else 409, {}, msgspec.json.encode(said))
