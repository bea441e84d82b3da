"""A JVM that runs Java for Python: Py4J's gateway, which comes with PySpark, so that nothing has to be compiled."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from py4j.java_gateway import GatewayParameters, JavaGateway  # type: ignore[import-untyped]

from tests.patience import PATIENCE_S
from tests.real.jvm import Server, java_command, pyspark_jars

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from offloaderd.core.clock import Clock


class RunningGateway(NamedTuple):
    """The JVM's process, and `java.jvm` to write Java with."""

    server: Server
    java: JavaGateway


@asynccontextmanager
async def java_gateway(
    directory: Path,
    clock: Clock,
    classes: Sequence[str] = (),
    *,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[RunningGateway]:
    """Run a JVM with these parts of a class path, and flags, behind its own, and these variables.

    Raises InvalidConfig (no Java), ServerDied.
    """
    gateway_jar = next(pyspark_jars().glob("py4j-*.jar"))
    main = ["py4j.GatewayServer", "--enable-auth", "0"]
    flags = ["-Xmx256m", *flags]
    command = java_command(
        "java-gateway", directory, [gateway_jar, *classes], main, flags=flags, environment=environment
    )
    server = Server(command, clock)
    server.launch()
    try:

        async def listening() -> bool:
            return server.log.count("\n") >= 2

        await server.child.ready(listening, PATIENCE_S)
        port, token = server.log.split("\n")[:2]
        java = JavaGateway(
            gateway_parameters=GatewayParameters(port=int(port), auth_token=token, read_timeout=PATIENCE_S)
        )
        try:
            yield RunningGateway(server, java)
        finally:
            java.close()
            # else each of its objects that is collected later calls the JVM that has ended, and logs an error
            java._gateway_client.is_connected = False
    finally:
        await server.stop()
