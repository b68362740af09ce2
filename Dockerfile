# A plain CPU image: the server and its locked dependencies; models are prepared at the first start, into a
# volume. Variants (CUDA, models inside) are not made yet.
FROM python:3.11-slim

WORKDIR /opt/resispec
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY server server
COPY engine engine
COPY models models
RUN pip install --no-cache-dir -c constraints.txt . && rm -rf /opt/resispec/*

COPY docker/healthcheck.py /usr/local/bin/resispec-healthcheck
RUN useradd --create-home resispec && install -d -o resispec /var/cache/resispec
USER resispec
WORKDIR /home/resispec

ENV RESISPEC_HOST=0.0.0.0 \
    RESISPEC_PORT=8000 \
    RESISPEC_CACHE=/var/cache/resispec
VOLUME /var/cache/resispec
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s CMD ["python", "/usr/local/bin/resispec-healthcheck"]

ENTRYPOINT ["resispec"]
CMD ["serve"]
