"""What a probe saw, as data: the codec, exceptions, evidence, and the observation on disk."""

from harness.observe.codec import Encoded, Encoding, EncodingError, canonical_bytes, encode
from harness.observe.observation import Observation, ObservationError
from harness.observe.run import HarnessFault, MissingSymbol, Run

__all__ = [
    "Encoded",
    "Encoding",
    "EncodingError",
    "HarnessFault",
    "MissingSymbol",
    "Observation",
    "ObservationError",
    "Run",
    "canonical_bytes",
    "encode",
]
