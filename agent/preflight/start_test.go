package preflight

import "github.com/jackc/pgx/v5/pgproto3"

func startReplication(slot string) *pgproto3.Query {
	return &pgproto3.Query{String: "START_REPLICATION SLOT " + slot + " LOGICAL 0/0 (proto_version '1', publication_names 'other')"}
}
