-- Nodes without a join token, by their keys: those that wait at the LOs of their sites, as these have
-- reported, and what was decided about them.
create table pending_nodes (
    site       text        not null,
    key        text        not null,              -- SHA-256 of the public key, in hex
    node       text        not null,              -- the name that it asked by
    device     text        not null default '',   -- serial number of the machine, as it says
    remote     text        not null default '',   -- the address that it asked from
    first_at   timestamptz not null default now(),
    last_at    timestamptz not null default now(), -- when it was reported last
    decision   text        not null default '',   -- approved or rejected; empty: none yet
    decided_at timestamptz,
    decided_by text        not null default '',
    replace    boolean     not null default false, -- it may take the name over from another key
    expires_at timestamptz,                       -- when the decision ends
    primary key (site, key)
);
