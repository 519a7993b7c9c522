"""The endpoints whose requests are admitted, and what each calls its output limit."""

from enum import StrEnum


class Endpoint(StrEnum):
    """An endpoint by its path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"

    @property
    def limit_fields(self) -> tuple[str, ...]:
        """The fields that bound the output; where several are set, an engine obeys the first.

        Source: vLLM's protocol classes, and `max_tokens` marked as deprecated by OpenAI's chat API.
        """
        return _LIMIT_FIELDS[self]


_LIMIT_FIELDS: dict[Endpoint, tuple[str, ...]] = {
    Endpoint.CHAT: ("max_completion_tokens", "max_tokens"),
    Endpoint.COMPLETIONS: ("max_tokens",),
    Endpoint.EMBEDDINGS: (),
    Endpoint.RESPONSES: ("max_output_tokens",),
    Endpoint.MESSAGES: ("max_tokens",),
}
