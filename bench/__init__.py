"""The benchmark harness: one load generator, one result schema, one report.

# Layout

- `__main__.py`: the command line; one sub-command a file (`text.py`, `cpu_text.py`, `gpu_text.py`, `phases.py`,
  `frontend.py`, `arena.py`, `plot.py`); `options.py` has the options that they share
- `kind.py` is what `text`, `asr` and `tts` are: a kind of load. `levels.py` runs it at levels of load, `sweep.py` looks
  for the highest one under the bounds of `slo.py`, `compare.py` sets two servers beside each other by `figures.py` and
  `contrast.py`
- `workload.py` makes the requests, `load.py` decides when each is sent, `client.py` sends it and times the answer over
  `http1.py` and `sse.py`; `crew.py` does so in several processes, `strain.py` watches whether they keep up,
  `backlog.py` whether the server does
- `tts.py` and `tts_wer.py` measure speech: `sentences.py` is what is said, `tts_client.py` listens, `pcm.py` reads
  audio as it arrives; `mixed.py` puts several kinds of load on one server, `mix.py` sends them
- `checkpoint.py` makes random checkpoints of the `shapes/`; `floor.py` says what a step must at least take
- `stats.py` and `summary.py` turn records into numbers; `schema.py` is the result file; `report/` draws it as
  tables, CSV, Markdown, plots and an HTML page
- `environment.py` says where a result was measured; `server.py` starts and stops a server, `launch.py`
  the one of `--launch`; `memory.py` watches it

The meaning of every number is in `docs/benchmarks.md`.
"""
