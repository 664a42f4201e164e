-- Whether the clock that site_time is of was not synchronised when it was read. A writer of
-- the release before leaves it out of event_outbox: then it is not marked.
alter table events add column site_time_unsynced boolean not null default false;
alter table event_outbox add column site_time_unsynced boolean[];
alter table deployment_history add column site_time_unsynced boolean not null default false;

-- As before, with the new column.
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
    insert into events (id, time, site_time, site_time_unsynced, kind, site, node, deployment, from_state, to_state, phase, app_version, code, message,
        pulled_bytes, total_bytes)
    select before + row_number() over (order by o.number, e.ordinality), coalesce(e.time, o.written_at), e.site_time, coalesce(e.site_time_unsynced, false), e.kind, e.site,
        e.node, e.deployment, e.from_state, e.to_state, e.phase, e.app_version, e.code, e.message, e.pulled_bytes, e.total_bytes
    from taken o, unnest(o.time, o.site_time, o.site_time_unsynced, o.kind, o.site, o.node, o.deployment, o.from_state, o.to_state, o.phase, o.app_version,
        o.code, o.message, o.pulled_bytes, o.total_bytes) with ordinality
        as e (time, site_time, site_time_unsynced, kind, site, node, deployment, from_state, to_state, phase, app_version, code, message, pulled_bytes,
            total_bytes, ordinality)
    order by o.number, e.ordinality;
    get diagnostics sequenced = row_count;
    update event_sequence set last = before + sequenced;
    perform pg_notify('colony_events_' || current_schema(), (before + sequenced)::text);
end
$$;
