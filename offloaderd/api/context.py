"""The context of a call, as gRPC gives it to each service."""

from typing import Any, TypeAlias

from grpc import aio

Context: TypeAlias = aio.ServicerContext[Any, Any]
