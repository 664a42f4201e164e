-- Which key signed a token, so that a replica can say that it has another one.
alter table access_tokens add column key_id text not null default '';   -- thumbprint (RFC 7638) of the public key; empty: not known
create index access_tokens_created on access_tokens (created_at, id);
