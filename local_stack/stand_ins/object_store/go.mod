// SeaweedFS is built from this folder: its own module's replacements hold for its own builds alone.
module lake.local/weed

go 1.26

require github.com/seaweedfs/seaweedfs v0.0.0-20261109003541-7506e5f91cd6

replace github.com/apache/thrift => github.com/apache/thrift v0.23.1-0.20260429145742-d2acd3c49e58

replace github.com/tyler-smith/go-bip39 => github.com/cosmos/go-bip39 v1.0.0
