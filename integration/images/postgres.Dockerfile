# The last layer of the locally built postgres images: see build.sh.
ARG BASE
FROM $BASE
ARG MAJOR
ARG DATA
ARG VOLUME_PATH
COPY postgres-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/$MAJOR/bin \
    LANG=C.UTF-8 \
    PGDATA=$DATA
VOLUME $VOLUME_PATH
EXPOSE 5432
# PostgreSQL's fast shutdown; SIGTERM would wait for the clients.
STOPSIGNAL SIGINT
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
