-- What is only ever added is kept for a time, in partitions: to remove what is older is to
-- drop a table. Events are parted by their ids, in whose order they are read; transitions
-- and anomalies by their weeks.

alter table events rename to events_before;
alter index events_pkey rename to events_before_pkey;
alter index events_site rename to events_before_site;
alter index events_deployment rename to events_before_deployment;
alter index events_notices rename to events_before_notices;
create table events (like events_before including defaults, primary key (id)) partition by range (id);
create index events_site on events (site, id);
create index events_node on events (site, node, id) where node <> '';
create index events_deployment on events (site, deployment, id) where deployment <> '';
create index events_kind on events (kind, id);
create index events_notices on events (kind, md5(message))
    where kind in ('file_ignored', 'deployment_waiting', 'site_added', 'desired_position_refused');

-- The partitions of events that there are. The newest is the one that is written to.
create table event_partitions (
    first   bigint primary key,        -- its least id; 0 of what there was before
    behind  bigint      not null,      -- the least id behind it
    name    text        not null,
    made_at timestamptz not null default now()
);
insert into event_partitions (first, behind, name) select 0, last + 1, 'events_before' from event_sequence;
do $$
begin
    execute format('alter table events attach partition events_before for values from (minvalue) to (%s)', (select behind from event_partitions));
end
$$;

-- make_event_partition makes the next partition. It is twice as wide as the one before
-- where that was full within half a day, and half as wide where it lasted for two, so
-- that what is dropped at once is about a day. No reader or writer of others waits for it.
create function make_event_partition() returns void language plpgsql as $$
declare
    newest event_partitions;
    width  bigint;
    name   text;
begin
    select * into strict newest from event_partitions order by first desc limit 1;
    width := 100000;
    if newest.first > 0 then
        width := case when now() - newest.made_at < interval '12 hours' then (newest.behind - newest.first) * 2
            when now() - newest.made_at > interval '2 days' then (newest.behind - newest.first) / 2
            else newest.behind - newest.first end;
    end if;
    width := least(greatest(width, 10000), 10000000);
    name := 'events_' || newest.behind;
    execute format('create table %I (like events including defaults including constraints)', name);
    execute format('alter table events attach partition %I for values from (%s) to (%s)', name, newest.behind, newest.behind + width);
    insert into event_partitions (first, behind, name) values (newest.behind, newest.behind + width, name);
end
$$;

-- As before, and it makes the partitions that it needs.
create or replace function sequence_events(bound integer, out sequenced bigint, out behind boolean) language plpgsql as $$
declare
    before bigint;
    upto   bigint;
    number_of bigint;
begin
    sequenced := 0;
    behind := false;
    if not exists (select from event_outbox) then
        return;
    end if;
    select last into strict before from event_sequence for update;
    -- A new snapshot, taken under the lock: it has all that the sequencer before left.
    select max(number), count(*) = 1000 or coalesce(bool_or(total >= bound), false), max(total) into upto, behind, number_of from (
        select number, sum(size) over (order by number) as total, sum(size) over (order by number) - size as earlier
        from (select number, size from event_outbox order by number limit 1000) o
    ) t where earlier < bound;
    if upto is null then
        return;
    end if;
    while before + number_of >= (select max(p.behind) from event_partitions p) loop
        perform make_event_partition();
    end loop;
    with taken as (
        delete from event_outbox where number <= upto returning *
    )
    insert into events (id, time, site_time, kind, site, node, deployment, from_state, to_state, phase, app_version, code, message,
        pulled_bytes, total_bytes)
    select before + row_number() over (order by o.number, e.ordinality), coalesce(e.time, o.written_at), e.site_time, e.kind, e.site,
        e.node, e.deployment, e.from_state, e.to_state, e.phase, e.app_version, e.code, e.message, e.pulled_bytes, e.total_bytes
    from taken o, unnest(o.time, o.site_time, o.kind, o.site, o.node, o.deployment, o.from_state, o.to_state, o.phase, o.app_version,
        o.code, o.message, o.pulled_bytes, o.total_bytes) with ordinality
        as e (time, site_time, kind, site, node, deployment, from_state, to_state, phase, app_version, code, message, pulled_bytes,
            total_bytes, ordinality)
    order by o.number, e.ordinality;
    get diagnostics sequenced = row_count;
    update event_sequence set last = before + sequenced;
    perform pg_notify('colony_events_' || current_schema(), (before + sequenced)::text);
end
$$;

-- One partition for each week, named by its Monday; rows that fit none are in _rest. A
-- week of which some rows lie elsewhere already gets none.
create function make_week(of_table text, monday date) returns void language plpgsql as $$
declare
    name text := of_table || to_char(monday, '_YYYYMMDD');
begin
    if to_regclass(quote_ident(name)) is not null then
        return;
    end if;
    execute format('create table %I (like %I including defaults including constraints)', name, of_table);
    execute format('alter table %I attach partition %I for values from (%L) to (%L)', of_table, name,
        monday::timestamp at time zone 'UTC', (monday + 7)::timestamp at time zone 'UTC');
exception when invalid_object_definition or check_violation then
    null;
end
$$;

alter table deployment_history rename to deployment_history_first;
alter index deployment_history_of rename to deployment_history_first_of;
create sequence deployment_history_ids;
create table deployment_history (like deployment_history_first including defaults) partition by range (time);
alter table deployment_history alter id set default nextval('deployment_history_ids');
alter sequence deployment_history_ids owned by deployment_history.id;
alter table deployment_history_first alter id drop identity;
create index deployment_history_of on deployment_history (site, deployment, id);

alter table anomalies rename to anomalies_first;
alter table anomalies_first drop constraint anomalies_pkey;
alter index anomalies_site rename to anomalies_first_site;
create sequence anomalies_ids;
create table anomalies (like anomalies_first including defaults) partition by range (time);
alter table anomalies alter id set default nextval('anomalies_ids');
alter sequence anomalies_ids owned by anomalies.id;
alter table anomalies_first alter id drop identity;
create index anomalies_site on anomalies (site, id);

do $$
declare
    next timestamptz := (date_trunc('week', now() at time zone 'UTC') + interval '7 days') at time zone 'UTC';
    t    text;
begin
    foreach t in array '{deployment_history,anomalies}'::text[] loop
        execute format('alter table %I attach partition %I for values from (minvalue) to (%L)', t, t || '_first', next);
        execute format('create table %I partition of %I default', t || '_rest', t);
        execute format('select setval(%L, coalesce((select max(id) from %I), 0) + 1, false)', t || '_ids', t);
        perform make_week(t, next::date + 7 * i) from generate_series(0, 3) as i;
    end loop;
end
$$;
