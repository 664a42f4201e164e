-- The whole desired state of a site that came before the one in desired_bodies: what most sites hold when they fetch
-- the new one, which then costs the link the difference. A replica of an earlier release does not write it: the site then
-- fetches the whole, as it did.
create table former_bodies (
    site   text primary key references sites (id),
    digest text  not null,
    body   bytea not null
);
create index former_bodies_digest on former_bodies (digest);
