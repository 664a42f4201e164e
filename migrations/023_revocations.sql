-- Keys of machines whose certificates no longer count, although they have not ended.
create table revoked_keys (
    key        text        primary key,           -- SHA-256 of the public key, in hex
    site       text        not null,
    name       text        not null,              -- of the machine, as in its certificates; or of the authority of a site
    authority  boolean     not null default false,
    revoked_at timestamptz not null default now(),
    not_after  timestamptz not null               -- when the last certificate of the key has ended: then the row is removed
);
create index on revoked_keys (site);

-- What was made of them for each site: the number grows with each other list.
create table revocation_lists (
    site    text   primary key,
    number  bigint not null,
    digest  text   not null                       -- of the keys
);

-- The key of the authority of a site, at its LO, and its end. Empty where the LO has not renewed
-- since. issued_at is when the last certificate was issued, as far as the CO knows.
alter table machines
    add column authority           text        not null default '',
    add column authority_not_after timestamptz,
    add column issued_at           timestamptz not null default now();
