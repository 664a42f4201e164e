-- A lease is the right of one replica of the CO to do a work that only one may do. It ends by
-- itself, so that a replica that is stopped or cut off holds nothing up, and its token grows
-- with each holder: what a former holder still writes is refused.
create table leases (
    name       text        primary key,
    token      bigint      not null,
    expires_at timestamptz not null
) with (fillfactor = 50); -- written every few seconds
