# quickstart: verl, vLLM, vllm-ascend and Megatron-core from PyPI alone, for a first look on any machine
# Written by npu-rl 0.2.0. Build it in a folder of its own, with the wheels that no index has beside it:
#   npu-rl container --manifest quickstart > Dockerfile
#   docker build -t npu-rl-quickstart .
#   npu-rl container --manifest quickstart --run-line
# Driver and firmware are the host's: no image has them.

# The manifest names no image: --build-arg BASE=IMAGE, with Python and its venv, of Debian, Ubuntu or openEuler.
ARG BASE
# hadolint ignore=DL3006
FROM ${BASE}

# git for npu-rl; jemalloc, as the published recipes preload it. Debian and Ubuntu have apt-get, openEuler has yum.
# hadolint ignore=DL3008,DL3033
RUN if command -v apt-get > /dev/null; then \
        apt-get update && apt-get install -y --no-install-recommends git libjemalloc2 && \
        ln -sf /usr/lib/"$(uname -m)"-linux-gnu/libjemalloc.so.2 /usr/local/lib/libjemalloc.so.2; \
    else \
        yum install -y git jemalloc && \
        ln -sf /usr/lib64/libjemalloc.so.2 /usr/local/lib/libjemalloc.so.2; \
    fi && \
    test -f /usr/local/lib/libjemalloc.so.2 && \
    rm -rf /var/lib/apt/lists/* /var/cache/yum /var/cache/dnf

# Of the build alone: where pip and npu-rl look. Images show them to everybody: no password belongs here.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG NPU_RL_REWRITE
ARG PIP_FIND_LINKS=/wheels
ARG BASE_PYTHON=python3
ARG BASE

COPY Dockerfile *.whl /wheels/

# npu-rl apart from what trains: the versions of neither replace the other's.
RUN "$BASE_PYTHON" -c "import sys; v = sys.version_info[:2]; assert v == (3, 11), f'Python of the base image: {v}'" && \
    "$BASE_PYTHON" -m venv /opt/npu-rl && \
    "$BASE_PYTHON" -m venv --system-site-packages /opt/training && \
    /opt/npu-rl/bin/pip install --no-cache-dir npu-rl==0.2.0

# The tree, from the lock. What it was fetched from is not kept.
RUN NPU_RL_STORE=/tmp/npu-rl-store /opt/npu-rl/bin/npu-rl setup --manifest quickstart --workspace /opt/npu-rl-workspace --python /opt/training/bin/python && \
    rm -rf /tmp/npu-rl-store && \
    echo "npu-rl-quickstart from $BASE" > /etc/npu-rl-image

# What the locked set leaves to the host; the locked set then has the last word on what these require.
RUN /opt/training/bin/pip install --no-cache-dir torch==2.13.0

# Every other package, one version of each, by its hash.
RUN /opt/npu-rl/bin/npu-rl requirements --manifest quickstart --python-version 3.11 > /tmp/requirements.txt && \
    /opt/training/bin/pip install --no-cache-dir --no-deps --require-hashes -r /tmp/requirements.txt && \
    rm /tmp/requirements.txt

ENV PATH=/opt/training/bin:/opt/npu-rl/bin:$PATH \
    LD_PRELOAD=/usr/local/lib/libjemalloc.so.2
WORKDIR /opt/npu-rl-workspace
CMD ["bash"]
