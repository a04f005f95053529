trap() { echo "my trap $*"; }
trap x EXIT
echo end
