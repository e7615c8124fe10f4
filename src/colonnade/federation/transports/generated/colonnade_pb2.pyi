from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("exchange", "data", "last", "size")
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    exchange: int
    data: bytes
    last: bool
    size: int
    def __init__(self, exchange: _Optional[int] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ..., size: _Optional[int] = ...) -> None: ...
