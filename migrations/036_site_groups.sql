-- Groups of sites, which tokens and the roles of people name as @name.
create table site_groups (
    name  text   primary key,
    sites text[] not null -- names of sites, or how names begin with a * after it
);
