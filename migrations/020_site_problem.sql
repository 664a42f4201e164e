-- What is wrong with the machine of a site's LO, for people, such as a full disk.
alter table sites add column problem text not null default '';
