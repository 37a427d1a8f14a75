# syntax=docker/dockerfile:1
# One image per role:  docker build --target verifier -t REGISTRY/pilotfish-verifier:0.1.0 .
# Targets: coordinator, drafter (no torch), drafter-torch, verifier. TORCH=cpu or TORCH=cuda for the two with torch.

ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/pilotfish
ENV PATH=/opt/pilotfish/bin:$PATH
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY pilotfish pilotfish
COPY coordinator coordinator
COPY drafter drafter
COPY verifier verifier
COPY benchmarks benchmarks

FROM build AS build-coordinator
RUN pip install -c constraints.txt '.[coordinator]'

FROM build AS build-drafter
RUN pip install -c constraints.txt '.[drafter]'

FROM build AS build-torch
ARG TORCH=cuda
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
RUN if [ "$TORCH" = cpu ]; then index="--extra-index-url $TORCH_CPU_INDEX"; else index=; fi \
 && pip install -c constraints.txt $index torch \
 && pip install -c constraints.txt '.[verifier]'

FROM python:${PYTHON}-slim AS run
ENV PATH=/opt/pilotfish/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OMP_WAIT_POLICY=passive \
    PILOTFISH_CACHE=/cache \
    HF_HOME=/cache/hub \
    TRANSFORMERS_NO_ADVISORY_WARNINGS=1
RUN install -d -o 65532 -g 65532 /cache
USER 65532:65532
WORKDIR /tmp
VOLUME /cache

FROM run AS coordinator
COPY --from=build-coordinator /opt/pilotfish /opt/pilotfish
EXPOSE 50050
ENTRYPOINT ["python", "-m", "coordinator"]

FROM run AS drafter
COPY --from=build-drafter /opt/pilotfish /opt/pilotfish
EXPOSE 50051
ENTRYPOINT ["python", "-m", "drafter"]

FROM run AS drafter-torch
COPY --from=build-torch /opt/pilotfish /opt/pilotfish
EXPOSE 50051
ENTRYPOINT ["python", "-m", "drafter"]

FROM run AS verifier
COPY --from=build-torch /opt/pilotfish /opt/pilotfish
EXPOSE 50052
ENTRYPOINT ["python", "-m", "verifier"]
