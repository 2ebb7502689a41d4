"""Paths of the HTTP interface, each written once; `{...}` parts are filled with `str.format`."""

API = "/api/v1"

# Agents, with an ingest token.
BATCHES = f"{API}/batches"
AGENT_DIRECTIVE = f"{API}/agent/runs/{{run}}/directive"
AGENT_RESULT = f"{API}/agent/runs/{{run}}/result"

# People and scripts, with a session cookie or an operator token.
RUNS = f"{API}/runs"
RUN = f"{API}/runs/{{run}}"
DIRECTIVES = f"{API}/runs/{{run}}/directives"
DIRECTIVE_REASON = f"{API}/runs/{{run}}/directives/{{revision}}/reason"
ROLLBACK = f"{API}/runs/{{run}}/rollback"
BASELINE = f"{API}/runs/{{run}}/baseline"
EVENTS = f"{API}/runs/{{run}}/events"
SERIES = f"{API}/runs/{{run}}/series"
FIGURES = f"{API}/runs/{{run}}/figures/{{figure}}"
LIVE = f"{API}/live"
RUN_LIVE = f"{API}/runs/{{run}}/live"
CODECS = f"{API}/codecs"
SCHEMA = f"{API}/schema"

# Machines.
METRICS = "/metrics"
LIVEZ = "/livez"
READYZ = "/readyz"
