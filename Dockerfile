# docker build --tag deltabeast .                       for CPUs
# docker build --tag deltabeast --build-arg TORCH= .    for GPUs: run with `--gpus all`
# docker run --shm-size 2g deltabeast make demo         workers share memory; `make test` runs the tests
# docker run --shm-size 2g --volume "$PWD/runs:/home/deltabeast/code/runs" deltabeast deltabeast train --game pong --core rdn
FROM debian:trixie-slim

# A compiler: kernels in C are built when they are first needed. git: results name their commit.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates gcc git libc6-dev make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home deltabeast
USER deltabeast
WORKDIR /home/deltabeast/code

# Where torch is looked for besides the usual index: by default builds for CPUs alone, a tenth of the size.
ARG TORCH=https://download.pytorch.org/whl/cpu
COPY --chown=deltabeast:deltabeast . .
RUN PIP_EXTRA_INDEX_URL=$TORCH PIP_NO_CACHE_DIR=1 make install

ENV PATH=/home/deltabeast/code/.venv/bin:$PATH
CMD ["deltabeast", "--help"]
