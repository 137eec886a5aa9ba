# An image that runs longspan; on a GPU with the NVIDIA container toolkit and --gpus all.
#   docker build --tag longspan .
#   docker run --rm --volume "$PWD/out:/work/out" longspan run starter -a softmax linear --tier smoke
FROM python:3.12-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1 \
    OMP_WAIT_POLICY=PASSIVE

WORKDIR /opt/longspan
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY longspan ./longspan
RUN pip install --constraint constraints.txt . \
    && useradd --create-home --uid 1000 arena \
    && mkdir /work \
    && chown arena /work

USER 1000
WORKDIR /work
ENTRYPOINT ["longspan"]
CMD ["--help"]
