-- When a list of revoked keys was made; which one its site goes by, as the LO has reported, and when the
-- CO heard of that.
alter table revocation_lists
    add column made_at    timestamptz not null default now(),
    add column adopted    bigint      not null default 0,
    add column adopted_at timestamptz;
update revocation_lists l set adopted = e.number, adopted_at = e.at
    from (select site, max(substring(message from '^list ([0-9]{1,18}) of')::bigint) as number, max(time) as at from events where kind = 'revocations_adopted' group by site) e
    where e.site = l.site and e.number is not null;

-- The machine was removed, and not revoked: where it starts once more, it may enrol anew.
alter table revoked_keys add column removed boolean not null default false;
-- Whether the name of a machine was revoked is asked for each join token.
create index on revoked_keys (name);
