"""The engine room: scheduling, drafting, verification and KV bookkeeping; knows nothing of HTTP."""
