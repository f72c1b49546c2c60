# One binary in a small image, run by an unprivileged user:
#   docker build -t tollgate . && docker run -p 8080:8080 tollgate

FROM rust:1.95-slim-trixie AS build
WORKDIR /build
COPY . .
# The cache mounts are not part of the image, so the binary is copied out of them.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --release --locked -p tollgate-server && cp target/release/tollgate /tollgate

# The same Debian as above, because the binary links its C library.
FROM debian:trixie-slim
LABEL org.opencontainers.image.title="Tollgate" \
      org.opencontainers.image.description="Exact rate limiting for any language, over HTTP and gRPC" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
# The certificate authorities for `rediss://` and OTLP over https.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /tollgate /usr/local/bin/tollgate
# On all interfaces, because a container's loopback cannot be reached from outside.
ENV TOLLGATE_LISTEN=0.0.0.0:8080 \
    TOLLGATE_GRPC_LISTEN=0.0.0.0:8081
EXPOSE 8080 8081
USER 65532:65532
STOPSIGNAL SIGTERM
# If the server listens on another port than 8080, set TOLLGATE_SERVER too.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["tollgate", "healthy"]
ENTRYPOINT ["tollgate"]
CMD ["serve"]
