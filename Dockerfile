# walferry in one static binary on an empty base.
#
#   docker build -t walferry .
#   docker run -v ./walferry.yaml:/etc/walferry.yaml -v walferry:/var/lib/walferry walferry
#
# The image has no pg_dump: with it, create the subscriber's tables first and set
# `schema: require`. integration/images/build.sh makes the same image without a registry.

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o /out/usr/bin/walferry ./cmd/walferry \
 && mkdir -p /out/var/lib/walferry /out/tmp /out/etc/ssl/certs \
 && cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ \
 && chown 65532:65532 /out/var/lib/walferry && chmod 1777 /out/tmp

FROM scratch
COPY --from=build /out /
ENV PATH=/usr/bin
USER 65532:65532
WORKDIR /var/lib/walferry
VOLUME /var/lib/walferry
ENTRYPOINT ["/usr/bin/walferry"]
CMD ["run", "-c", "/etc/walferry.yaml"]
