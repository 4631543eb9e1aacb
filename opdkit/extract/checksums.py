"""Check digits of numbers that are given to people: cards, bank accounts, Chinese identity cards.

Of random digits one in ten passes as a card number and one in 97 as an IBAN, so these stand behind a pattern.
"""

import re

# Issuers: Visa; Mastercard; American Express; Diners; JCB; Discover and UnionPay; Maestro.
_ISSUER = re.compile(r"4(?:.{12}|.{15}|.{18})|(?:5[1-5]|2[2-7]).{14}|3[47].{13}|3(?:0[0-5]|[689]).{11,13}|"
                     r"35.{14}|6(?:011.{12,15}|[245].{14,17})|(?:50|5[6-9]|6).{14}")  # fmt: skip
_CHINESE_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


def is_card(text: str) -> bool:
    """Return whether the digits are those of a payment card: an issuer's prefix and length, and Luhn's check digit.

    ISO/IEC 7812-1, annex B: every second digit from the right is doubled, and the sum of all digits ends in 0.
    """
    digits = [int(digit) for digit in text if digit.isdecimal()]
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    is_issued = _ISSUER.fullmatch("".join(map(str, digits))) is not None and len(set(digits)) > 1
    return is_issued and (sum(digits[-1::-2]) + doubled) % 10 == 0


def is_iban(text: str) -> bool:
    """Return whether an IBAN's check digits hold: ISO 13616, with its first four characters last, it is 1 modulo 97."""
    compact = "".join(text.split()).upper()
    return int("".join(str(int(char, 36)) for char in compact[4:] + compact[:4])) % 97 == 1


def is_chinese_id(text: str) -> bool:
    """Return whether the last of 18 characters is the check digit of the others: GB 11643, ISO 7064 MOD 11-2."""
    return "10X98765432"[sum(int(d) * w for d, w in zip(text, _CHINESE_WEIGHTS, strict=False)) % 11] == text[-1].upper()
