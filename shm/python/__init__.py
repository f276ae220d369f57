"""Client of a Denizen server on the same machine, over shared memory: tokens and sound without HTTP.

    from denizen.shm import Client

    with Client() as client:
        print(client.generate(messages=[{"role": "user", "content": "Hello!"}]).text)

`docs/sdk.md` has more examples. Needs nothing but the base install: no torch.

# Layout

| module | what it is |
|---|---|
| `client`, `async_client` | the calls |
| `requests`, `parameters`, `results`, `pcm` | what is sent and what comes back, typed; no input or output |
| `stream`, `aio`, `deadline` | waiting for answers, in a thread and in an event loop |
| `connection` | one reader thread, and the table of open calls |
| `opening`, `rendezvous`, `wire` | finding the server, attaching, envelopes |
| `errors` | what can go wrong |
"""

from denizen.shm.aio import AsyncSpeech, AsyncStream
from denizen.shm.async_client import AsyncClient
from denizen.shm.client import Client
from denizen.shm.errors import (
    BadRequest,
    Busy,
    ClientClosed,
    ConnectError,
    DenizenError,
    Forked,
    NotFound,
    RequestError,
    ServerError,
    ServerGone,
    SlowReader,
    Timeout,
)
from denizen.shm.results import (
    Choice,
    Chunk,
    Completion,
    Limits,
    Logprob,
    Model,
    Segment,
    Spoken,
    Tokens,
    Transcript,
    TranscriptChunk,
    Usage,
    Word,
)
from denizen.shm.stream import Speech, Stream

__all__ = [
    "AsyncClient",
    "AsyncSpeech",
    "AsyncStream",
    "BadRequest",
    "Busy",
    "Choice",
    "Chunk",
    "Client",
    "ClientClosed",
    "Completion",
    "ConnectError",
    "DenizenError",
    "Forked",
    "Limits",
    "Logprob",
    "Model",
    "NotFound",
    "RequestError",
    "Segment",
    "ServerError",
    "ServerGone",
    "SlowReader",
    "Speech",
    "Spoken",
    "Stream",
    "Timeout",
    "Tokens",
    "Transcript",
    "TranscriptChunk",
    "Usage",
    "Word",
]
