package fleetdb

// SiteTables are the tables that RemoveSite empties.
var SiteTables = siteTables
