-- What a person asked for by name, and no commit says: the removal of a deployment that the
-- deployments repo does not have, of volumes that outlived their deployment, of a node, of a
-- site. The loop of the desired state takes it up. The release before writes none of it.
create table requests (
    site         text        not null references sites (id) on delete cascade,
    kind         text        not null,            -- remove, purge, decommission, site
    node         text        not null default '',
    deployment   text        not null default '',
    volume       text        not null default '', -- '': all volumes of the deployment
    volumes      boolean     not null default false,
    requested_at timestamptz not null default now(),
    pending      boolean     not null default true, -- not taken up yet
    epoch        bigint      not null default 0,  -- of the desired state that first had it; generation 0: none has it
    generation   bigint      not null default 0,
    done_at      timestamptz,                     -- the site reported that it is carried out, or why it is not
    refused      text        not null default '', -- why it is not
    primary key (site, kind, node, deployment, volume)
);
create index requests_pending on requests (site) where pending;

-- The CO has gone on above what the site holds with a record that was not compared with the
-- deployments repo since: nothing of it is published before that.
alter table sites add column unfollowed boolean not null default false;
