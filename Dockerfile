# One binary in a small image, run by nobody in particular:
#   docker build -t tollgate . && docker run -p 8080:8080 tollgate

FROM rust:1.95-slim-trixie AS build
WORKDIR /build
COPY . .
# The caches stay on the machine that builds; the binary must leave them.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --release --locked -p tollgate-server && cp target/release/tollgate /tollgate

# The same Debian as above: the binary links its C library.
FROM debian:trixie-slim
LABEL org.opencontainers.image.title="Tollgate" \
      org.opencontainers.image.description="Exact rate limiting for any language, over HTTP and gRPC" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
# The authorities that `rediss://` and OTLP over https are checked against.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /tollgate /usr/local/bin/tollgate
# A container's loopback is its own.
ENV TOLLGATE_LISTEN=0.0.0.0:8080 \
    TOLLGATE_GRPC_LISTEN=0.0.0.0:8081
EXPOSE 8080 8081
USER 65532:65532
STOPSIGNAL SIGTERM
# Elsewhere than on port 8080: set TOLLGATE_SERVER too.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["tollgate", "healthy"]
ENTRYPOINT ["tollgate"]
CMD ["serve"]
