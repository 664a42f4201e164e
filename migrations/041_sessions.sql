-- Sessions: programs in containers with somebody at them (docs/adr/0016-sessions.md).
create table sessions (
    id          text        primary key, -- that of the command
    site        text        not null,
    node        text        not null,
    deployment  text        not null,
    component   text        not null default '',
    container   text        not null default '',
    arguments   text[]      not null,
    terminal    boolean     not null,
    principal   text        not null default '',
    carrier     text        not null, -- the CO that carries it
    alive_at    timestamptz not null default now(), -- when that said so last
    opened_at   timestamptz not null,
    began_at    timestamptz,
    ended_at    timestamptz,
    reason      text        not null default '',
    exit_code   integer,
    message     text        not null default '',
    stop_asked  boolean     not null default false,
    stopped_by  text        not null default '',
    recorded    bigint      not null default 0, -- bytes
    digest      text        not null default ''
);
create index sessions_opened on sessions (opened_at desc, id desc);
create index sessions_site on sessions (site, opened_at desc, id desc);
create index sessions_open on sessions (carrier) where ended_at is null;

-- The recording of a session, in pieces: asciicast v2.
create table session_output (
    session text    not null references sessions (id) on delete cascade,
    number  bigint  not null, -- where it begins, in bytes
    data    bytea   not null,
    primary key (session, number)
);
