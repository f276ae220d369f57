"""A server of text, speech and transcripts at once, for tests of the harness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from .asr_peer import AsrBehaviour, AsrPeer
from .peer import Behaviour, Peer, running
from .tts_peer import TtsBehaviour, TtsPeer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

MODELS = ("tiny", "mouth", "ears")


class MixedPeer:
    """Its parts keep what arrived, each its own."""

    def __init__(self, text: Behaviour, tts: TtsBehaviour, asr: AsrBehaviour) -> None:
        self.text, self.tts, self.asr = Peer(text), TtsPeer(tts), AsrPeer(asr)
        self.url = ""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._models)
        for part in (self.text, self.tts, self.asr):
            for route in part.app().router.routes():
                if route.method == "POST" and route.resource is not None:
                    app.router.add_post(route.resource.canonical, route.handler)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name} for name in MODELS]})


def doing_all(
    text: Behaviour | None = None, tts: TtsBehaviour | None = None, asr: AsrBehaviour | None = None
) -> AbstractContextManager[MixedPeer]:
    """Runs a peer in a thread of its own until the block is left."""
    return running(MixedPeer(text or Behaviour(), tts or TtsBehaviour(), asr or AsrBehaviour()))
