-- One word for one thing, as in 005: a site receives a command, and an operator cancels it. No release has these columns, so that none of the
-- release before reads them.
alter table command_sites drop column state; -- and the index command_sites_open
alter table command_sites rename column taken_at to received_at;
alter table command_sites rename column withdrawn_at to cancelled_at;
comment on column command_sites.received_at is 'When the site reported that it has the command, or refuses it.';
alter table command_sites add column state text not null generated always as (case
    when code <> '' then 'refused'
    when given_up and received_at is null then case when cancelled_at is null then 'expired' else 'cancelled' end
    when (received_at is not null or cardinality(nodes) > 0) and done + failed + refused + expired + unknown >= meant then 'ended'
    when given_up then case when cancelled_at is null then 'expired' else 'cancelled' end
    when received_at is not null or running + done + failed + refused + expired + unknown > 0 then 'running'
    else 'waiting' end) stored;
create index command_sites_open on command_sites (deadline) where not given_up and state in ('waiting', 'running');
update command_nodes set code = 'cancelled' where code = 'withdrawn';

alter table sites rename column behind to incomplete;
comment on column sites.incomplete is 'Rows of what the site reported are missing: its LO is asked for a snapshot.';

-- A constraint kept the name of a table of before 005.
alter table down_streams rename constraint down_lanes_site_fkey to down_streams_site_fkey;
