// What `go build` makes gofakes3's server from.
module lake.local/object-store

go 1.24

require github.com/johannesboyne/gofakes3 v1.2.0
