"""The wire format: data classes of every message that travels over a websocket; docs/protocol.md explains them.

Nothing here imports torch or the engine: clients use it as well.
"""
