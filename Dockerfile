# One static binary without a shell, as a non-root user, with the licences of linked libraries.
FROM golang:1.26 AS build
WORKDIR /src
COPY . .
ARG TARGETOS=linux TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags="-s -w" -o /out/quorate . && \
    mkdir -p /out/licenses && go run ./config/notices -os "$TARGETOS" -arch "$TARGETARCH" > /out/licenses/THIRD_PARTY_NOTICES && \
    cp LICENSE /out/licenses/ && cp /usr/share/doc/ca-certificates/copyright /out/licenses/ca-certificates && \
    mkdir -p /out/tmp && chmod 1777 /out/tmp && \
    printf 'nonroot:x:65532:65532::/:\n' > /out/passwd

FROM scratch
COPY --from=build /out/passwd /etc/passwd
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/licenses /licenses
COPY --from=build /out/tmp /tmp
COPY --from=build /out/quorate /quorate
# The Kubernetes version of the API server; a test compares it with the program's.
LABEL dev.quorate.kubernetes.version=1.37.2
USER 65532:65532
ENTRYPOINT ["/quorate"]
