-- What lets machines enrol. Of the secret there is its SHA-256 alone.
create table join_tokens (
    id         text        primary key,
    site       text        not null,
    kind       text        not null,              -- of the machine: lo or en
    secret     bytea       not null,
    uses       integer     not null,              -- how often it may be used
    used       integer     not null default 0,
    replace    boolean     not null default false, -- it may take a name over from another key
    created_at timestamptz not null default now(),
    expires_at timestamptz not null
);
create index on join_tokens (site);

-- The machines that were enrolled at the CO, by the name in their certificates.
create table machines (
    name        text        primary key,
    site        text        not null,
    key         text        not null,              -- SHA-256 of the public key, in hex
    token       text        not null,              -- id of the join token that was used
    enrolled_at timestamptz not null default now(),
    serial      text        not null default '',   -- of the last certificate, in hex
    not_after   timestamptz                        -- its end
);
create index on machines (site);
