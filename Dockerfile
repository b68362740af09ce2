# docker build -t resispec --build-arg TORCH_INDEX=URL .         runs on a CPU; URL: an index of CPU builds
# docker build -t resispec:cuda --build-arg VARIANT=cuda .       runs on a GPU (the NVIDIA container toolkit)
# ... --build-arg MODELS=default, or hub ids with spaces between them: models inside the image
ARG PYTHON=3.11.13-slim-bookworm

FROM python:${PYTHON} AS base
ENV PATH=/opt/resispec/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

# What rarely changes, in layers of its own: a new version of the server moves megabytes, not gigabytes.
FROM base AS dependencies
ARG VARIANT=cpu
# The usual build of PyTorch for Linux brings the CUDA libraries. An index that has builds for CPUs only
# (PyTorch's own is one) makes the CPU image some gigabytes smaller.
ARG TORCH_INDEX=""
WORKDIR /src
COPY constraints.txt ./
RUN python -m venv /opt/resispec \
    && case "$VARIANT" in \
        cpu) pip install -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch ;; \
        cuda) pip install -c constraints.txt torch ;; \
        *) echo "VARIANT is cpu or cuda, not '$VARIANT'" >&2; exit 1 ;; \
    esac
# Without the rooms this is a package of dependencies alone.
COPY pyproject.toml setup.py README.md LICENSE ./
RUN pip install -c constraints.txt ".[otel]" && pip uninstall --yes resispec

# The compiler builds our kernels for CPUs and stays behind.
FROM dependencies AS wheel
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY server server
COPY engine engine
COPY models models
RUN pip wheel --no-deps --wheel-dir /wheel .

FROM base AS server
COPY --from=dependencies /opt/resispec /opt/resispec
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip install --no-deps --no-index /wheel/*.whl \
    && useradd --uid 10001 --user-group --create-home resispec \
    && install -d -o resispec -g resispec /var/cache/resispec
COPY --chmod=755 docker/entrypoint.sh /usr/local/bin/resispec-entrypoint
COPY --chmod=755 docker/bake.sh /usr/local/bin/resispec-bake
COPY docker/healthcheck.py /usr/local/bin/resispec-healthcheck

USER 10001:10001
WORKDIR /home/resispec
ENV HF_HOME=/var/cache/resispec/huggingface \
    RESISPEC_CACHE=/var/cache/resispec \
    RESISPEC_HOST=0.0.0.0 \
    RESISPEC_PORT=8000
ARG MODELS=""
RUN resispec-bake $MODELS
VOLUME /var/cache/resispec

EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s CMD ["python", "/usr/local/bin/resispec-healthcheck"]
ENTRYPOINT ["resispec-entrypoint"]
CMD ["serve"]
