"""The families of a vLLM 0.32 page that the simulator prints, and the signal that each carries.

The names, kinds and labels are vLLM's. A family that is not modelled stands at zero, as on a vLLM that does
not use the feature: a reader tells the version from the names.
"""

from typing import Literal, NamedTuple

POST = {"handler": "/v1/completions", "method": "POST"}


class Family(NamedTuple):
    """One family; counters are named without the `_total` that they are printed with.

    `label` splits the family. `owner` says whose labels its samples have: those of the engine, of the model,
    or none. `also` are labels that all its samples have.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    signal: str
    help: str
    label: str = ""
    owner: Literal["engine", "model", "server"] = "engine"
    also: dict[str, str] = {}  # noqa: RUF012 - never changed


FAMILIES = (
    Family(
        "vllm:estimated_flops_per_gpu",
        "counter",
        "est_flops_total",
        "Floating point operations; not modelled.",
    ),
    Family(
        "vllm:estimated_read_bytes_per_gpu", "counter", "est_read_bytes_total", "Bytes read; not modelled."
    ),
    Family(
        "vllm:estimated_write_bytes_per_gpu",
        "counter",
        "est_write_bytes_total",
        "Bytes written; not modelled.",
    ),
    Family("vllm:num_requests_running", "gauge", "running", "Requests in execution batches."),
    Family("vllm:num_requests_waiting", "gauge", "waiting", "Requests that wait to be processed."),
    Family(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "waiting_by_reason",
        "Waiting requests by reason.",
        label="reason",
    ),
    Family(
        "vllm:engine_sleep_state",
        "gauge",
        "sleep_state",
        "Sleep state; awake = 0 means asleep.",
        label="sleep_state",
    ),
    Family("vllm:kv_cache_usage_perc", "gauge", "kv_usage", "KV-cache usage. 1 means 100 percent usage."),
    Family(
        "vllm:prefix_cache_queries",
        "counter",
        "prefix_queries_total",
        "Tokens looked up in the prefix cache.",
    ),
    Family("vllm:prefix_cache_hits", "counter", "prefix_hits_total", "Tokens found in the prefix cache."),
    Family(
        "vllm:external_prefix_cache_queries",
        "counter",
        "ext_prefix_queries_total",
        "Tokens looked up elsewhere; not modelled.",
    ),
    Family(
        "vllm:external_prefix_cache_hits",
        "counter",
        "ext_prefix_hits_total",
        "Tokens found elsewhere; not modelled.",
    ),
    Family(
        "vllm:mm_cache_queries",
        "counter",
        "mm_cache_queries_total",
        "Multi-modal items looked up; not modelled.",
    ),
    Family("vllm:mm_cache_hits", "counter", "mm_cache_hits_total", "Multi-modal items found; not modelled."),
    Family("vllm:num_preemptions", "counter", "preemptions_total", "Preemptions."),
    Family(
        "vllm:prompt_tokens",
        "counter",
        "prompt_tokens_total",
        "Prompt tokens processed, cached ones included.",
    ),
    Family(
        "vllm:prompt_tokens_by_source",
        "counter",
        "prompt_tokens_by_source_total",
        "Prompt tokens by source.",
        label="source",
    ),
    Family("vllm:prompt_tokens_cached", "counter", "cached_prompt_tokens_total", "Cached prompt tokens."),
    Family(
        "vllm:prompt_tokens_cached_by_source",
        "counter",
        "cached_prompt_tokens_by_tier_total",
        "Cached prompt tokens by tier.",
        label="source",
    ),
    Family("vllm:generation_tokens", "counter", "generation_tokens_total", "Generated tokens."),
    Family(
        "vllm:request_success", "counter", "finished_total", "Finished requests.", label="finished_reason"
    ),
    Family(
        "vllm:admission_rejections",
        "counter",
        "rejected_total",
        "Requests refused by a queue limit; not modelled.",
        label="reason",
        owner="model",
    ),
    Family("vllm:request_prompt_tokens", "histogram", "prompt_len", "Prompt tokens of a request."),
    Family("vllm:request_generation_tokens", "histogram", "generation_len", "Generated tokens of a request."),
    Family("vllm:iteration_tokens_total", "histogram", "step_tokens", "Tokens of an engine step."),
    Family(
        "vllm:request_max_num_generation_tokens",
        "histogram",
        "max_generation_len",
        "Generated tokens of a request's longest sequence.",
    ),
    Family("vllm:request_params_n", "histogram", "param_n", "Request parameter n."),
    Family(
        "vllm:request_params_max_tokens", "histogram", "param_max_tokens", "Request parameter max_tokens."
    ),
    Family("vllm:time_to_first_token_seconds", "histogram", "ttft", "Time from arrival to the first token."),
    Family("vllm:inter_token_latency_seconds", "histogram", "itl", "Time between two tokens."),
    Family(
        "vllm:request_time_per_output_token_seconds",
        "histogram",
        "tpot",
        "Mean time per output token of a request.",
    ),
    Family("vllm:e2e_request_latency_seconds", "histogram", "e2e", "Time from arrival to the last token."),
    Family("vllm:request_queue_time_seconds", "histogram", "queue_time", "Time until first scheduled."),
    Family(
        "vllm:request_inference_time_seconds",
        "histogram",
        "inference_time",
        "Time from first scheduled to the last token.",
    ),
    Family(
        "vllm:request_prefill_time_seconds",
        "histogram",
        "prefill_time",
        "Time from first scheduled to the first token.",
    ),
    Family(
        "vllm:request_decode_time_seconds",
        "histogram",
        "decode_time",
        "Time from the first to the last token.",
    ),
    Family(
        "vllm:request_num_preemptions",
        "histogram",
        "preemptions_per_request",
        "How often a request was preempted.",
    ),
    Family(
        "vllm:request_prefill_kv_computed_tokens",
        "histogram",
        "prefill_computed_len",
        "KV tokens computed in a prefill, without cached ones.",
    ),
    Family(
        "process_start_time_seconds",
        "gauge",
        "start_time",
        "Start time of the process in Unix seconds.",
        owner="server",
    ),
    Family(
        "http_requests",
        "counter",
        "http_requests_total",
        "Requests by method, status and handler.",
        label="status",
        owner="server",
        also=POST,
    ),
    Family(
        "http_request_duration_highr_seconds",
        "histogram",
        "http_duration_hr",
        "Latency in many buckets.",
        owner="server",
    ),
    Family(
        "http_request_duration_seconds",
        "histogram",
        "http_duration",
        "Latency in few buckets by handler.",
        owner="server",
        also=POST,
    ),
)
