# docker build --target cpu --tag npmlm:cpu .       the last stage, so also without --target
# docker build --target cuda --tag npmlm:cuda .     run it with --gpus all
FROM python:3.12-slim AS wheel
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY configs configs
COPY index index
COPY npm npm
COPY studies studies
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.12-slim AS runtime
RUN useradd --create-home --uid 10001 npmlm && install --directory --owner npmlm --group npmlm /data
ENV HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
WORKDIR /home/npmlm
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=8)"]
ENTRYPOINT ["npmlm"]
CMD ["serve", "index=/data", "host=0.0.0.0"]

# torch trains and encodes on the GPU, faiss-gpu makes inverted lists there; both wheels of FAISS are one module.
FROM runtime AS cuda
ARG TORCH=torch==2.13.0
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
  pip install --no-cache-dir "$TORCH" && pip install --no-cache-dir "$(ls /dist/*.whl)[serve]" && \
  pip uninstall --yes faiss-cpu && pip install --no-cache-dir "faiss-gpu>=1.15.1"
USER npmlm

FROM runtime AS cpu
ARG TORCH=torch==2.13.0+cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
  pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" "$TORCH" && pip install --no-cache-dir "$(ls /dist/*.whl)[serve]"
USER npmlm
