"""Admission without I/O: sizes, reservations, queue, fairness, routing. Time and chance are arguments.

Theory of operation. An engine that is sent more than it can hold serves nobody in time, so what waits has to
wait here, where it can be refused in time and served in a fair order. A request passes these:

    how large is it?          prompt_size, output_size (with what they learn: size_calibration,
                              output_quantile), body_edit
    may its tenant?           quota
    where can it go?          routing: a line for its model and pool (line), a replica of it (replica)
    is there room now?        ledger, for tokens and sequences; our share of it: shares
    is the replica well?      breaker; a second try elsewhere: retries
    else: who waits, and how long?    queue, engine_part, service_rate
    who is next?              fairness
    no?                       grounds, refusal

`admission.Admission` joins them and is all that the HTTP gateway, an Envoy processor and the simulator talk
to: `request.Request` goes in, a `verdict` comes out with the `ticket` by which its life is told, and
`outcomes` counts what became of it.

Nothing here imports a network, clock, thread, file or randomness module, nor any room but signals and policy.
"""
