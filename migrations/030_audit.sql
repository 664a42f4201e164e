-- Who did what by the API. Rows are added and never changed, but for their place in the chain, which they get once.
create table audit (
    id        text        primary key,
    at        timestamptz not null,               -- by the CO's clock
    kind      text        not null,               -- intent, outcome, settled, refused or local
    of        text        not null default '',    -- the intent that an outcome is of, or what stands for one
    principal text        not null default '',
    role      text        not null default '',
    token     text        not null default '',
    remote    text        not null default '',
    operation text        not null default '',    -- method and pattern of the route
    target    text        not null default '',    -- the path that was asked for
    status    integer     not null default 0,     -- of the answer; 0: none
    commits   text[]      not null default '{}',
    detail    text        not null default '',
    position  bigint      unique,                 -- in the chain; null: not yet
    hash      bytea                               -- SHA-256 of the row and of all before it
);
create index audit_at on audit (at, id);
create unique index audit_outcome on audit (of, kind) where of <> '';
create index audit_unsealed on audit (at, id) where position is null;
create index audit_principal on audit (principal, at, id);

create function audit_keeps() returns trigger language plpgsql as $$
begin
    if tg_op = 'UPDATE' then
        if old.position is null and new.position = (select coalesce(max(position), 0) + 1 from audit) and to_jsonb(new) - 'position' - 'hash' = to_jsonb(old) - 'position' - 'hash' then
            return new;
        end if;
    end if;
    raise exception 'rows of the audit are not changed and not removed';
end $$;
-- The intents that have no outcome yet.
create table audit_open (
    id text        primary key,
    at timestamptz not null
);
create index audit_open_at on audit_open (at, id);
create trigger audit_keeps before update or delete on audit for each row execute function audit_keeps();
create trigger audit_stays before truncate on audit execute function audit_keeps();
