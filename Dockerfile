# offloaderd (the target that is built unless another is named) and `--target spark`, which adds Java and Spark.
# Requirements are locked with hashes, as everywhere in this project. docs/deploy.md says how it was checked.
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
COPY requirements/build.txt requirements/runtime.txt requirements/
# One requirement comes as source (pure-sasl, for metadata.auth = "sasl"), so what builds it has to be the locked tools.
RUN python -m venv tools \
    && tools/bin/pip install --require-hashes -r requirements/build.txt \
    && python -m venv --without-pip /opt/offloaderd \
    && tools/bin/pip wheel --require-hashes --no-build-isolation --wheel-dir runtime -r requirements/runtime.txt \
    && tools/bin/pip --python /opt/offloaderd/bin/python install --no-index --no-deps runtime/*.whl
COPY pyproject.toml README.md LICENSE NOTICE pyspark_offload.py ./
COPY offloaderd offloaderd
RUN tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && tools/bin/pip --python /opt/offloaderd/bin/python install --no-deps wheels/*.whl

FROM build AS build-native
# The compiler makes the loops over entries; the image that runs has none.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY native native
RUN tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir native ./native \
    && tools/bin/pip --python /opt/offloaderd/bin/python install --no-index --no-deps native/*.whl

FROM build-native AS build-spark
COPY requirements/spark.txt requirements/
# PySpark comes as source, so what builds it has to be the locked tools.
RUN tools/bin/pip wheel --require-hashes --no-build-isolation --wheel-dir spark -r requirements/spark.txt \
    && tools/bin/pip --python /opt/offloaderd/bin/python install --no-index --no-deps spark/*.whl

FROM ${PYTHON} AS base
RUN groupadd --system --gid 10001 offloaderd \
    && useradd --system --uid 10001 --gid 10001 --home-dir /var/lib/offloaderd --create-home offloaderd
ENV PATH=/opt/offloaderd/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/offloaderd
EXPOSE 7650 7651
STOPSIGNAL SIGTERM
# Alive, as Kubernetes asks by HTTP: half a second of a core each time.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 CMD ["offloaderd", "health"]
ENTRYPOINT ["offloaderd"]
CMD ["serve"]

FROM base AS spark
USER 0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-spark /opt/offloaderd /opt/offloaderd
USER 10001:10001
HEALTHCHECK NONE
ENTRYPOINT []
CMD ["offloadctl", "--help"]

FROM base AS offloaderd
COPY --from=build-native /opt/offloaderd /opt/offloaderd
