"""DoctorService: the daemon examines its dependencies with its own settings, from its own host."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from offloaderd.api.context import Context
from offloaderd.core.errors import Conflict
from offloaderd.format.parsing import filled
from offloaderd.protocol.v1 import doctor_pb2, doctor_pb2_grpc


class DoctorService(doctor_pb2_grpc.DoctorServiceServicer):
    """Runs one examination at a time: each writes probes and opens connections of its own.

    `examine` yields values with the fields of a CheckResult.
    """

    def __init__(self, examine: Callable[[], AsyncGenerator[object, None]]) -> None:
        self._examine = examine
        self._busy = False

    async def Examine(
        self, request: doctor_pb2.ExamineRequest, context: Context
    ) -> AsyncIterator[doctor_pb2.CheckResult]:
        """Yield results as they are found. Raises Conflict while another examination runs."""
        if self._busy:
            raise Conflict("an examination is under way", hint="wait for it: it takes seconds, a minute at the most")
        self._busy = True
        try:
            async with aclosing(self._examine()) as results:
                async for result in results:
                    yield filled(doctor_pb2.CheckResult, result)
        finally:
            self._busy = False
