-- A proposal is a part of a change that waits until somebody confirms it
-- (docs/adr/0006-proposals.md).
create table proposals (
    id        text        primary key,
    number    bigint      generated always as identity, -- the order of opening
    kind      text        not null,
    commit    text        not null, -- of the deployments repo, which asks for it
    state     text        not null default 'open',
    opened_at timestamptz not null default now(),
    closed_at timestamptz,
    closed_by text        not null default ''
);
create unique index proposals_open on proposals (kind, commit) where state = 'open';
create index proposals_number on proposals (number);

create table proposal_effects (
    proposal    text    not null references proposals (id),
    site        text    not null,
    deployment  text    not null,
    app         text    not null default '',
    app_version text    not null default '',
    cause       text    not null, -- why it is held
    state       text    not null default 'open',
    active      boolean not null default true, -- what is held is not done yet, and not void
    nodes       text[]  not null default '{}', -- some of those that ran it when it was held
    node_count  integer not null default 0,
    primary key (proposal, site, deployment)
);
create unique index proposal_effects_active on proposal_effects (site, deployment) where active;

alter table deployments
    add column held text not null default ''; -- the proposal that holds its removal
