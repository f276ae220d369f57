"""A worker without a model, for tests of everything in front of it: ``python -m denizen.worker.stub``.

It speaks the whole protocol, batches continuously within the same limits as a real worker, and answers with tokens that
are a function of the prompt, and of the audio where the model hears (:mod:`denizen.worker.stub.speech`), or with a tone
where it speaks (:mod:`denizen.worker.stub.tone`). It can also misbehave on purpose; see
:mod:`denizen.worker.stub.options`.
"""
