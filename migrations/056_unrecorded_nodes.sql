-- with_unrecorded counts the nodes that have containers of a deployment without a record, of which it knew before only whether there are any.
create or replace function with_unrecorded(of_site text, of_name text, desired boolean, counts integer[]) returns integer[] language plpgsql stable as $$
declare
    having_it integer;
begin
    if desired or exists (select from unnest(counts[1:7]) as n where n > 0) then
        return counts;
    end if;
    select count(*) into having_it from nodes where site = of_site and inventory ? 'unknown' and inventory -> 'unknown' ? of_name;
    if having_it = 0 then
        return counts;
    end if;
    return array[0, 0, 0, 0, 0, 0, having_it, coalesce(counts[8], 0)];
end
$$;
